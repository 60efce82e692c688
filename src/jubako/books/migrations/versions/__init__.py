"""One module a step, in the order that `down_revision` gives. A step that was released is never changed."""
