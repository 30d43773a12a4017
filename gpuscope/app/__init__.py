"""The page: a Dash application that shows one trace, served on this machine."""
