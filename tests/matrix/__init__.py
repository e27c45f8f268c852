"""Every input, output, trigger and mode together: the allowed run, the forbidden are refused with a reason."""
