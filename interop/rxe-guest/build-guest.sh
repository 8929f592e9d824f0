#!/bin/bash
# Build the guest from Debian packages, all of it under $RXE_WORK:
# vmlinuz and initramfs.gz (busybox + kernel modules + rdma-core + perftest).
# Needs root for apt; installs nothing but the tools named in TOOLS. Exit status 77: they cannot be had here.
set -euo pipefail
. "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

TOOLS="qemu-system-x86 cpio iproute2 busybox-static kmod xz-utils"
PKGS="ibverbs-utils perftest rdmacm-utils rdma-core infiniband-diags iproute2 tcpdump
 libibverbs1 ibverbs-providers librdmacm1 libnl-3-200 libnl-route-3-200 libibumad3 libibmad5
 libpci3 libbpf1 libelf1 libmnl0 libbsd0 libcap2 libmd0 libxtables12 libpcap0.8 libudev1"
MODS="virtio_pci virtio_net virtio_console rdma_rxe ib_core ib_cm rdma_cm ib_uverbs rdma_ucm
 ib_umad ib_ipoib udp_tunnel ip6_udp_tunnel crc32_generic crc32_pclmul e1000 tun veth bridge
 sch_netem sch_tbf sch_prio cls_u32 act_gact nvmet nvmet_rdma nvme_rdma nvme_fabrics null_blk
 loop configfs xt_statistic nft_chain_nat nft_numgen brd"
BINS="usr/bin/ibv_* usr/bin/ib_*_bw usr/bin/ib_*_lat usr/bin/rping usr/bin/ucmatose usr/bin/udaddy
 usr/bin/udpong usr/bin/mckey usr/bin/rstream usr/bin/riostream usr/bin/rdma_* usr/bin/cmtime
 usr/bin/rdma usr/bin/tcpdump bin/ip bin/ss sbin/tc sbin/bridge
 usr/sbin/ibstat usr/sbin/ibping usr/sbin/perfquery"

if [ "${1:-}" != --no-apt ]; then
  export DEBIAN_FRONTEND=noninteractive
  # shellcheck disable=SC2086
  { apt-get update -qq && apt-get install -y -qq --no-install-recommends $TOOLS; } </dev/null >/dev/null ||
    { echo "build-guest.sh: apt-get cannot install: $TOOLS" >&2; exit 77; }
fi

D=$RXE_WORK/debs; P=$RXE_WORK/pkgs; K=$RXE_WORK/kernel; R=$RXE_WORK/root
mkdir -p "$D" "$P" "$K"

# 1. packages: fetched and unpacked, never installed
KPKG=${RXE_KPKG:-$(apt-cache depends linux-image-amd64 | awk '/Depends: linux-image/ && !n++ {print $2}')}
(cd "$D"
 for p in $KPKG $PKGS; do
   # shellcheck disable=SC2144
   [ -e "$p"_*.deb ] 2>/dev/null || apt-get download -qq "$p" 2>/dev/null || die "cannot fetch $p"
 done)
[ -d "$K/lib/modules" ] || dpkg -x "$D/$KPKG"_*.deb "$K"
for p in $PKGS; do dpkg -x "$D/$p"_*.deb "$P"; done
KVER=$(basename "$(printf '%s\n' "$K"/lib/modules/* | sed -n 1p)")
cp "$K/boot/vmlinuz-$KVER" "$RXE_WORK/vmlinuz"
depmod -b "$K" "$KVER"

# 2. root file system
rm -rf "$R"; mkdir -p "$R"/{bin,sbin,proc,sys,dev,tmp,run,root,etc,lib64,usr/bin,usr/sbin,usr/lib,var/run}
BB=$(command -v busybox)
cp "$BB" "$R/bin/busybox"
for a in $("$BB" --list); do
  case $a in busybox|ip|tc|modprobe|depmod|insmod|rmmod|lsmod|modinfo) continue;; esac
  ln -sf busybox "$R/bin/$a"
done
ln -sf busybox "$R/bin/sh"

LIBS=$P/usr/lib/x86_64-linux-gnu:$P/lib/x86_64-linux-gnu
MULTI=usr/lib/x86_64-linux-gnu
mkdir -p "$R/$MULTI/libibverbs" "$R/etc/libibverbs.d"
need=()
add() { install -m 755 "$1" "$R/usr/bin/$(basename "$1")"; need+=("$1"); }
# shellcheck disable=SC2086
for b in $BINS; do for f in $P/$b; do [ -e "$f" ] && add "$(readlink -f "$f")"; done; done
KMOD=$(readlink -f "$(command -v kmod)"); add "$KMOD"
for a in modprobe insmod rmmod lsmod modinfo depmod; do ln -sf ../usr/bin/kmod "$R/sbin/$a"; done
cp "$P/$MULTI"/libibverbs/librxe-rdmav*.so "$R/$MULTI/libibverbs/"; need+=("$R/$MULTI"/libibverbs/librxe-rdmav*.so)
cp "$P/etc/libibverbs.d/rxe.driver" "$R/etc/libibverbs.d/"
# pthread_exit loads it; read to the end, or ldconfig may die of its pipe
GCC=$(ldconfig -p | awk '/libgcc_s.so.1 .*x86-64/ && !n++ {print $NF}')
[ -n "$GCC" ] && cp -L "$GCC" "$R/$MULTI/"
for f in "${need[@]}"; do LD_LIBRARY_PATH=$LIBS ldd "$f" | awk '$3 ~ /^\//{print $3} $1 ~ /ld-linux/{print $1}'; done |
  sort -u | while read -r l; do
    case $l in */ld-linux*) cp -L "$l" "$R/lib64/";; *) cp -L "$l" "$R/$MULTI/$(basename "$l")";; esac
  done
# Host libraries may live outside the loader's default folders: name ours explicitly.
ln -sfn "../$MULTI" "$R/usr/lib/multi"; mkdir -p "$R/lib"; ln -sfn "../$MULTI" "$R/lib/x86_64-linux-gnu"
echo /usr/lib/x86_64-linux-gnu > "$R/etc/ld.so.conf"
ldconfig -r "$R" 2>/dev/null || true

mkdir -p "$R/lib/modules/$KVER"
for m in $MODS; do
  modprobe -d "$K" -S "$KVER" -a --show-depends "$m" 2>/dev/null || echo "module $m: not in this kernel" >&2
done | awk '$1=="insmod"{print $2}' | sort -u | while read -r f; do
  rel=${f#"$K"/}; mkdir -p "$R/$(dirname "$rel")"
  # newer kernels' modules are compressed, which the guest's kmod does not read
  case $rel in *.xz) xz -dc "$f" >"$R/${rel%.xz}" ;; *) cp "$f" "$R/$rel" ;; esac
done
cp "$K/lib/modules/$KVER"/modules.{order,builtin,builtin.modinfo} "$R/lib/modules/$KVER/"
depmod -b "$R" "$KVER"

printf 'root:x:0:0:root:/root:/bin/sh\n' > "$R/etc/passwd"
printf 'root:x:0:\n' > "$R/etc/group"
install -m 755 "$RXE_HERE/guest/init" "$R/init"
install -m 755 "$RXE_HERE/guest/agent" "$R/bin/agent"

# 3. initramfs
(cd "$R" && find . | LC_ALL=C sort | cpio -o -H newc -R 0:0 --quiet | gzip -1) > "$RXE_WORK/initramfs.gz"
echo "$KVER" > "$RXE_WORK/kver"
echo "guest kernel $KVER; initramfs $(du -k "$RXE_WORK/initramfs.gz" | cut -f1) KiB"
