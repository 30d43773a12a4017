"""Figures: a trace or a result in, a Plotly figure or plain marks out."""
