"""Autoregressive loops that keep any accelerator busy.

``decode_step`` is one step with its state on the device, ``step_program`` submits it (as a graph
where there is one), ``decode_loop`` drives it sequentially or double-buffered. Nothing here is
particular to gapless: only ``torch.accelerator``, ``torch.Stream`` and ``torch.Event`` are used.
"""
