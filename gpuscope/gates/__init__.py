"""Gates: expectations held against traces, and two runs held against each other."""
