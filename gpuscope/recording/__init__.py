"""Recording: start programs under Nsight Systems, and say what they ran on."""
