/* Finds or creates the references of a shape.
 *
 * References are computed once per shape, routing and seed, and stored in a sealed memory file that outlives
 * the runner. A restarted runner reuses them, and so does the race after the probes. */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"
#include "measure/session/memfd_cache.h"
#include "measure/session/memory.h"
#include "measure/session/session_data.h"

/* True if the reference block contains z. References created on the device omit z, because few steps need it.
 */
static bool has_z(const struct mf_session *s)
{
    return !s->device_data || !mf_device_data_keeps_z(s->device_data);
}

/* Writes the key of the references: readable sizes, and a hash of everything that the values depend on. The
 * hash is needed because a recorded routing profile can be longer than a key. */
static void reference_key(const struct mf_session *s, char key[MF_KEPT_KEY_MAX])
{
    char shape[MF_SHAPE_TEXT_MAX], routing[MF_ROUTING_TEXT_MAX];
    mf_shape_print(&s->shape, shape);
    mf_routing_print(&s->options.routing, routing);
    uint64_t h = mf_hash64(shape, strlen(shape) + 1, MF_HASH_SEED);
    h = mf_hash64(routing, strlen(routing) + 1, h);
    mf_format(key, MF_KEPT_KEY_MAX, "reference/T%lld.H%d.I%d/%016llx/seed%llu%s", (long long)s->shape.token,
              (int)s->shape.model_dim, (int)s->shape.inter_dim, (unsigned long long)h,
              (unsigned long long)s->options.seed, has_z(s) ? "" : "/without-z");
}

static int make(struct mf_session *s, size_t bytes, const char *key)
{
    int fd;
    if (bytes > mf_memory_available())
        return -ENOMEM;
    int r = mf_memory_file("moefarm-reference", bytes, &fd);
    if (r < 0)
        return r;
    void *at = mf_memory_map(fd, bytes, PROT_READ | PROT_WRITE, 0);
    struct mf_reference made;
    if (!at)
        r = -errno;
    else if (s->device_data)
        r = mf_device_data_reference(s->device_data, &s->data, at, &made);
    else
        r = mf_reference_make_in(&s->data, NULL, at, &made);
    /* a file with a writable mapping cannot be sealed */
    if (at)
        (void)munmap(at, bytes);
    if (r < 0) {
        mf_closep(&fd);
        return r;
    }
    return mf_region_seal(fd, bytes, s->memfd_store, key, &s->ref_region);
}

int mf_session_reference(struct mf_session *s)
{
    char key[MF_KEPT_KEY_MAX];
    size_t bytes;
    int r = mf_reference_bytes(&s->shape, has_z(s), &bytes);
    if (r < 0)
        return r;
    bytes = (bytes + 4095) & ~(size_t)4095; /* round up to whole pages, as for regions */
    reference_key(s, key);
    r = mf_region_find(s->memfd_store, key, bytes, &s->ref_region);
    if (r == -ENOENT)
        r = make(s, bytes, key);
    if (r == 0)
        mf_reference_open(&s->shape, has_z(s), s->ref_region.at, &s->ref);
    return r;
}

int mf_session_z(struct mf_session *s)
{
    size_t bytes = (size_t)(s->shape.token * s->shape.topk * s->shape.model_dim) * sizeof(float);
    if (s->ref.z)
        return 0;
    if (bytes > mf_memory_available())
        return -ENOMEM;
    int r = mf_region_new(bytes, &s->z_region);
    if (r == 0)
        r = mf_device_data_z(s->device_data, &s->data, &s->ref, (float *)(void *)s->z_region.at);
    if (r == 0)
        r = mf_region_protect(&s->z_region);
    if (r < 0) {
        mf_region_release(&s->z_region);
        return r;
    }
    s->ref.z = (float *)(void *)s->z_region.at;
    return 0;
}
