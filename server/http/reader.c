#include "server/http/reader.h"

#include "common/base/log.h"
#include "server/farm/bus.h"
#include "server/http/problem.h"
#include "server/http/request.h"
#include "server/http/route.h"

#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <zmq.h>

struct thread {
    struct mf_readers *readers;
    pthread_t id;
    void *out;
    struct mf_reader reader;
};

struct mf_readers {
    char *path;
    int stop_fd;
    pthread_mutex_t in_lock; /* held to receive from `in` */
    void *in;                /* PULL socket shared by all threads */
    int n_threads;           /* number of running threads */
    int n_sockets;           /* number of threads whose `out` was created */
    struct thread *threads;
};

static void refuse(struct mf_request *r, const char *detail)
{
    (void)mf_refuse(&r->response, 503, "%s", detail);
    (void)mf_respond_header(&r->response, "Retry-After", "1");
}

static void work(struct thread *t, struct mf_request *r)
{
    struct mf_reader *reader = &t->reader;
    int e = reader->store ? 0 : mf_store_open_reader(t->readers->path, &reader->store);
    if (e == -ENOENT) {
        refuse(r, "the store is not open yet");
        return;
    }
    if (e == 0)
        e = mf_store_begin(reader->store);
    if (e < 0) {
        (void)log_err(e, "open a snapshot for %s", r->route->path);
        refuse(r, "the store cannot be read now; see the log of moefarmd");
        return;
    }
    (void)mf_request_run(r, reader);
    if (r->response.status >= 500)
        log_warn("%s: %s", r->route->path, mf_store_error(reader->store));
    mf_store_rollback(reader->store);
}

/* Returns the next request, or NULL on stop. The thread that holds the lock polls the socket, and idle
 * threads wait for the lock. ZeroMQ allows several threads to use a socket one after another under a lock. */
static struct mf_request *take(struct mf_readers *readers)
{
    zmq_pollitem_t items[] = {{NULL, readers->stop_fd, ZMQ_POLLIN, 0}, {readers->in, 0, ZMQ_POLLIN, 0}};
    struct mf_request *r = NULL;
    (void)pthread_mutex_lock(&readers->in_lock);
    while (!r && (zmq_poll(items, 2, -1) >= 0 || errno == EINTR) && !items[0].revents)
        (void)mf_bus_recv_pointer(readers->in, &r);
    (void)pthread_mutex_unlock(&readers->in_lock);
    return r;
}

static void *thread_main(void *arg)
{
    struct thread *t = arg;
    for (struct mf_request *r; (r = take(t->readers));) {
        work(t, r);
        /* The HTTP thread has exited; the response has no receiver. */
        if (mf_bus_send_pointer(t->out, r) < 0)
            (void)mf_request_free(r);
    }
    t->reader.store = mf_store_free(t->reader.store);
    return NULL;
}

static int open_in(struct mf_readers *r, void *zmq)
{
    int one = 1;
    r->in = zmq_socket(zmq, ZMQ_PULL);
    /* The limit of an inproc queue is the sum of both high-water marks, so let the HTTP thread's end set the
     * limit */
    if (!r->in || zmq_setsockopt(r->in, ZMQ_RCVHWM, &one, sizeof(one)) < 0 ||
        zmq_connect(r->in, MF_BUS_READS) < 0)
        return -errno;
    return 0;
}

static int open_out(struct thread *t, void *zmq)
{
    int linger = 0;
    t->out = zmq_socket(zmq, ZMQ_PUSH);
    t->readers->n_sockets++;
    if (!t->out || zmq_setsockopt(t->out, ZMQ_LINGER, &linger, sizeof(linger)) < 0 ||
        zmq_connect(t->out, MF_BUS_REPLIES) < 0)
        return -errno;
    return 0;
}

int mf_readers_start(void *zmq, const char *path, int n, struct mf_readers **ret)
{
    struct mf_readers *r = calloc(1, sizeof(*r));
    if (!r)
        return -ENOMEM;
    r->in_lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    r->path = strdup(path);
    r->threads = calloc((size_t)n, sizeof(*r->threads));
    r->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int e = !r->path || !r->threads ? -ENOMEM : r->stop_fd < 0 ? -errno : 0;
    if (e == 0)
        e = open_in(r, zmq);
    for (int i = 0; e == 0 && i < n; i++) {
        r->threads[i].readers = r;
        e = open_out(&r->threads[i], zmq);
        if (e == 0)
            e = -pthread_create(&r->threads[i].id, NULL, thread_main, &r->threads[i]);
        if (e == 0)
            r->n_threads++;
    }
    if (e < 0) {
        (void)mf_readers_stop(r);
        return e;
    }
    *ret = r;
    return 0;
}

struct mf_readers *mf_readers_stop(struct mf_readers *r)
{
    if (!r)
        return NULL;
    uint64_t one = 1;
    if (r->stop_fd >= 0)
        (void)!write(r->stop_fd, &one, sizeof(one));
    for (int i = 0; i < r->n_threads; i++)
        (void)pthread_join(r->threads[i].id, NULL);
    for (int i = 0; i < r->n_sockets; i++) {
        if (r->threads[i].out)
            (void)zmq_close(r->threads[i].out);
    }
    struct mf_request *left;
    while (r->in && mf_bus_recv_pointer(r->in, &left) > 0)
        (void)mf_request_free(left);
    if (r->in)
        (void)zmq_close(r->in);
    (void)pthread_mutex_destroy(&r->in_lock);
    mf_closep(&r->stop_fd);
    free(r->threads);
    free(r->path);
    free(r);
    return NULL;
}
