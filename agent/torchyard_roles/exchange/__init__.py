"""Exchange of tensors between processes: authenticated connections, layouts of parameters and staging of chunks."""
