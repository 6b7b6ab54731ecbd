"""One pass over a stream: observe, fence, catch up, plan, prepare, commit, settle."""
