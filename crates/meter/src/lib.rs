//! CPU time of requests, measured poll by poll.
