#!/bin/bash
set -e
/etc/eks/bootstrap.sh web --use-max-pods false --local-disks raid0 \
  --kubelet-extra-args '--max-pods=110 --node-labels=a=b'
