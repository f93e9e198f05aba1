"""Simulators: traces on a virtual fleet (`fairlead simulate`), and the fault simulation in `chaos/`."""
