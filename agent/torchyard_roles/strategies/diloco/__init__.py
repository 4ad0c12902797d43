"""The strategy DiLoCo: worker groups train independently, and an outer optimizer combines them every H steps."""
