"""The strategy DiLoCo: worker groups train independently, and every H steps an outer optimizer steps for all."""
