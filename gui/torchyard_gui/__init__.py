"""The window of Torchyard: draw a topology, launch it, watch it live."""

# Before PySide6, which reads the source of every module that is imported after it: core has many, and the window
# needs these at once. It saves a tenth of the time to the first paint.
import torchyard_core.fleet.facts
import torchyard_core.launch.plan
import torchyard_core.topology.document  # noqa: F401 - only to be there
