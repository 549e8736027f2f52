"""The log in the formats that other systems read. Each module turns events into chunks of bytes, lazily.

An export is a view for a hospital's own tools. The record is the log itself: only that can be verified, and each
exported event holds or names its line.
"""
