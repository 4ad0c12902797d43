"""The commands of `torchyard`, one module for each command or group."""
