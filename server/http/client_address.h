/* Identifies HTTP clients by their network address, for limits per client. */
#pragma once

#include <stdint.h>
#include <sys/socket.h>

/* Hashes an IPv4 address (also if mapped to IPv6). Of any other IPv6 address, hashes only the /64 prefix,
 * because one client may own a whole /64 network. A secret seed keeps clients from choosing a collision. */
uint64_t mf_client_hash(const struct sockaddr *from, uint64_t seed);
