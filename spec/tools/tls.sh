#!/bin/sh
# Makes the certificates for the specs of rediss:// in the folder DIR.
#
#   tls.sh DIR
#
#   ca.crt        the authority that tests trust
#   good          for localhost and 127.0.0.1, signed by it
#   expired       the same, expired in 2001
#   wrong         for example.org, signed by it
#   foreign       for localhost and 127.0.0.1, signed by foreign-ca.crt, which
#                 is not trusted
#   client        a client certificate, signed by ca.crt
#
# Each name is a pair DIR/name.crt and DIR/name.key.

set -eu
mkdir -p "$1"
cd "$1"
exec 2>openssl.log
trap '[ $? = 0 ] || cat openssl.log >&3' EXIT
exec 3>&1

here="DNS:localhost,IP:127.0.0.1,IP:::1"

cat >ca.cnf <<END
[ca]
default_ca = test
[test]
database = index
serial = serial
new_certs_dir = .
default_md = sha256
policy = any
copy_extensions = copy
unique_subject = no
[any]
commonName = supplied
END
: >index
echo 01 >serial

# authority NAME: makes a key and a self-signed certificate.
authority() {
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 \
        -nodes -days 2 -subj "/CN=rlock test $1" -keyout "$1.key" \
        -out "$1.crt"
}

# sign NAME AUTHORITY NAMES END: makes a pair whose certificate expires at END.
sign() {
    openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 \
        -nodes -subj "/CN=$1" -addext "subjectAltName=$3" \
        -keyout "$1.key" -out "$1.csr"
    openssl ca -batch -notext -config ca.cnf -cert "$2.crt" \
        -keyfile "$2.key" -startdate 20000101000000Z -enddate "$4" \
        -in "$1.csr" -out "$1.crt"
}

later=20490101000000Z
authority ca
authority foreign-ca
sign good ca "$here" "$later"
sign expired ca "$here" 20010101000000Z
sign wrong ca "DNS:example.org" "$later"
sign foreign foreign-ca "$here" "$later"
sign client ca "DNS:client" "$later"
rm -f ./*.csr ./*.pem index* serial* ca.cnf
