"""A folder with the module `sitecustomize`. It is first on the PYTHONPATH of interpreters that are started early."""
