"""Finds the packages below core, agent and gui, so that none is forgotten. All else is in pyproject.toml.

`packages.find` there cannot add the resources, whose folder has another name than their package.
"""

from setuptools import find_packages, setup

FOLDERS = ("core", "agent", "gui")

setup(packages=["torchyard_resources", *(name for folder in FOLDERS for name in find_packages(folder))])
