"""How the parts are put together: the command, the embedded bus, and later the chart and the image."""
