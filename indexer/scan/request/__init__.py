"""What readers may ask, decoded and checked in one go. Pure.

First on the way of a scan: whatever comes from outside is a request from here, or a problem document.
"""
