#include "server/http/client_address.h"

#include "common/base/text.h"

#include <netinet/in.h>

uint64_t mf_client_hash(const struct sockaddr *from, uint64_t seed)
{
    if (from && from->sa_family == AF_INET6) {
        const struct in6_addr *at = &((const struct sockaddr_in6 *)from)->sin6_addr;
        return IN6_IS_ADDR_V4MAPPED(at) ? mf_hash64(&at->s6_addr[12], 4, seed) : mf_hash64(at, 8, seed);
    }
    if (from && from->sa_family == AF_INET)
        return mf_hash64(&((const struct sockaddr_in *)from)->sin_addr, 4, seed);
    return seed;
}
