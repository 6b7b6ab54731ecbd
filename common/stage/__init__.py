"""What lies in the stage beside data files, and how it is written and read: markers, beginnings, requests, signs."""
