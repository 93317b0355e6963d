"""Where raw data is read: events, frames and times."""
