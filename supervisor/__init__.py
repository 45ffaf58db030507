"""The machine: processes, devices, files, clock and journal. Acts on what planners decide."""
