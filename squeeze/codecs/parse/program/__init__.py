"""Programs as wrappers: images of ELF, PE and Mach-O, whose sections are transformed so that more of them repeats."""
