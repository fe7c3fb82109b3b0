"""Text of a file that names something elsewhere: nothing there is opened, deleted or asked for."""
