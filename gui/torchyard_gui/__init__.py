"""The graphical user interface of Torchyard, in which users draw topologies, launch them and watch the runs."""
