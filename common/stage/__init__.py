"""The stage's objects other than data files, and their formats: markers, chain origins, requests, notifications."""
