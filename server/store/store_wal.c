#include "server/store/store_wal.h"

#include <sqlite3.h>

#include "common/base/fault.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define BUFFER_MAX (120 << 10) /* SQLite's default VFS writes at most 128 KiB - 1 byte per system call */

struct wal_file {
    sqlite3_file base; /* first member, because SQLite accesses only this one */
    uint8_t *buffer;   /* buffered bytes, to be written at `offset` */
    int len;
    sqlite3_int64 offset;
    sqlite3_file *real; /* file of the default VFS, in the memory after this struct */
};

static struct wal_file *to_wal(sqlite3_file *file)
{
    return (struct wal_file *)file;
}

static int flush(struct wal_file *w)
{
    int len = w->len;
    w->len = 0;
    return len > 0 ? w->real->pMethods->xWrite(w->real, w->buffer, len, w->offset) : SQLITE_OK;
}

static int wal_write(sqlite3_file *file, const void *data, int len, sqlite3_int64 offset)
{
    struct wal_file *w = to_wal(file);
    int code = SQLITE_OK;
    if (w->len > 0 && (offset != w->offset + w->len || w->len + len > BUFFER_MAX))
        code = flush(w);
    if (code != SQLITE_OK || len > BUFFER_MAX)
        return code != SQLITE_OK ? code : w->real->pMethods->xWrite(w->real, data, len, offset);
    if (w->len == 0)
        w->offset = offset;
    memcpy(w->buffer + w->len, data, (size_t)len);
    w->len += len;
    return SQLITE_OK;
}

static int wal_read(sqlite3_file *file, void *data, int len, sqlite3_int64 offset)
{
    struct wal_file *w = to_wal(file);
    int code = flush(w);
    return code == SQLITE_OK ? w->real->pMethods->xRead(w->real, data, len, offset) : code;
}

static int wal_truncate(sqlite3_file *file, sqlite3_int64 size)
{
    struct wal_file *w = to_wal(file);
    int code = flush(w);
    return code == SQLITE_OK ? w->real->pMethods->xTruncate(w->real, size) : code;
}

static int wal_sync(sqlite3_file *file, int flags)
{
    struct wal_file *w = to_wal(file);
    int code = flush(w);
    mf_fault_at(MF_FAULT_WAL_WRITTEN);
    return code == SQLITE_OK ? w->real->pMethods->xSync(w->real, flags) : code;
}

static int wal_size(sqlite3_file *file, sqlite3_int64 *ret)
{
    struct wal_file *w = to_wal(file);
    int code = flush(w);
    return code == SQLITE_OK ? w->real->pMethods->xFileSize(w->real, ret) : code;
}

static int wal_close(sqlite3_file *file)
{
    struct wal_file *w = to_wal(file);
    int written = flush(w), closed = w->real->pMethods->xClose(w->real);
    free(w->buffer);
    w->buffer = NULL;
    return written != SQLITE_OK ? written : closed;
}

static int wal_lock(sqlite3_file *file, int kind)
{
    return to_wal(file)->real->pMethods->xLock(to_wal(file)->real, kind);
}

static int wal_unlock(sqlite3_file *file, int kind)
{
    return to_wal(file)->real->pMethods->xUnlock(to_wal(file)->real, kind);
}

static int wal_reserved(sqlite3_file *file, int *ret)
{
    return to_wal(file)->real->pMethods->xCheckReservedLock(to_wal(file)->real, ret);
}

static int wal_control(sqlite3_file *file, int op, void *arg)
{
    return to_wal(file)->real->pMethods->xFileControl(to_wal(file)->real, op, arg);
}

static int wal_sector(sqlite3_file *file)
{
    return to_wal(file)->real->pMethods->xSectorSize(to_wal(file)->real);
}

static int wal_device(sqlite3_file *file)
{
    return to_wal(file)->real->pMethods->xDeviceCharacteristics(to_wal(file)->real);
}

static const sqlite3_io_methods wal_methods = {
    .iVersion = 1,
    .xClose = wal_close,
    .xRead = wal_read,
    .xWrite = wal_write,
    .xTruncate = wal_truncate,
    .xSync = wal_sync,
    .xFileSize = wal_size,
    .xLock = wal_lock,
    .xUnlock = wal_unlock,
    .xCheckReservedLock = wal_reserved,
    .xFileControl = wal_control,
    .xSectorSize = wal_sector,
    .xDeviceCharacteristics = wal_device,
};

static int open_file(sqlite3_vfs *vfs, const char *name, sqlite3_file *file, int flags, int *ret_flags)
{
    sqlite3_vfs *real = sqlite3_vfs_find(NULL);
    (void)vfs;
    if (!(flags & SQLITE_OPEN_WAL))
        return real->xOpen(real, name, file, flags, ret_flags);
    struct wal_file *w = to_wal(file);
    *w = (struct wal_file){.buffer = malloc(BUFFER_MAX), .real = (sqlite3_file *)(w + 1)};
    if (!w->buffer)
        return SQLITE_NOMEM;
    int code = real->xOpen(real, name, w->real, flags, ret_flags);
    if (code != SQLITE_OK) {
        /* A file that has methods must be closed even if xOpen failed */
        if (w->real->pMethods)
            (void)w->real->pMethods->xClose(w->real);
        free(w->buffer);
        w->buffer = NULL;
        return code;
    }
    w->base.pMethods = &wal_methods;
    return SQLITE_OK;
}

int mf_store_wal_register(void)
{
    static sqlite3_vfs vfs; /* static, because SQLite's list of VFSs points to it */
    sqlite3_vfs *real = sqlite3_vfs_find(NULL);
    if (sqlite3_vfs_find(MF_STORE_WAL))
        return 0;
    if (!real)
        return -ENODEV;
    /* All other methods are those of the default VFS. They find their data in this copy */
    vfs = *real;
    vfs.zName = MF_STORE_WAL;
    vfs.pNext = NULL;
    vfs.szOsFile = (int)sizeof(struct wal_file) + real->szOsFile;
    vfs.xOpen = open_file;
    return sqlite3_vfs_register(&vfs, 0) == SQLITE_OK ? 0 : -ENOMEM;
}
