"""The release of periods: OptStream, its calibration, its plan file, its tuning and what it releases."""
