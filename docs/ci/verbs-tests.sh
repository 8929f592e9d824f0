#!/bin/sh
# Tests of programs that open an RDMA device. Put yours here: a program and its peer, a test suite, anything.
set -eu

# A peer that may not be listening yet.
client() {
  for attempt in 1 2 3 4 5 6 7 8 9; do
    "$@" && return
    sleep 0.5
  done
  "$@"
}

ibv_devinfo

ibv_rc_pingpong -g 0 -c &
client ibv_rc_pingpong -g 0 -c 127.0.0.1
wait $!

ib_send_bw -x 0 -F -n 200 &
client ib_send_bw -x 0 -F -n 200 127.0.0.1
wait $!
