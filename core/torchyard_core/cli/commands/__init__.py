"""The commands of `torchyard`, in modules by command or group of commands."""
