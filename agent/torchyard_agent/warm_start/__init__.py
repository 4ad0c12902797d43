"""The first folder on PYTHONPATH of interpreters that are started early. It contains only the module sitecustomize."""
