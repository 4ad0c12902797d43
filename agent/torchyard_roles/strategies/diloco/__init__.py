"""The strategy DiLoCo: worker groups train independently, and an outer optimizer averages them every H steps."""
