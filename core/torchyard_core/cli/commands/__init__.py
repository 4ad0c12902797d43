"""The commands of `torchyard`, with one module per command or group."""
