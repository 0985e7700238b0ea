"""The launcher: csrun_cpu and csrun_wse."""
