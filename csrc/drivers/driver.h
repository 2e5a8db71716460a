/* The driver contract: what gapless asks of the code under a device, in plain C.
 *
 * A driver is a table of functions. `gapless_driver` is filled in by the driver and never changes
 * after `init` returned. Unless a call says otherwise:
 *   threading   any thread may call it, several at a time;
 *   ownership   the caller owns every buffer that it passes in;
 *   errors      a call returns GAPLESS_OK or a status, and on failure `last_error` tells, on the
 * same thread and until the next failing call, what was wanted, the limit and the remedy. No call
 * may take Python's global lock or block on work that another stream has to finish.
 */
#ifndef GAPLESS_DRIVERS_DRIVER_H_
#define GAPLESS_DRIVERS_DRIVER_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Raised whenever the table or the meaning of a call changes; gapless refuses another number. */
#define GAPLESS_DRIVER_ABI_VERSION 1u

typedef enum gapless_status {
  GAPLESS_OK = 0,
  GAPLESS_OUT_OF_MEMORY = 1,
  GAPLESS_INVALID_ARGUMENT = 2,
  GAPLESS_FAILED = 3,
} gapless_status;

typedef enum gapless_copy_kind {
  GAPLESS_HOST_TO_DEVICE = 0,
  GAPLESS_DEVICE_TO_HOST = 1,
  GAPLESS_DEVICE_TO_DEVICE = 2,
} gapless_copy_kind;

typedef struct gapless_device_properties {
  char name[64];
  uint64_t total_memory_bytes;
  uint32_t cores;
  /* 1 where host code on a stream's thread may read and write device memory through its address
   * (then PyTorch's CPU kernels run on it in place); 0 where only `copy` reaches it. */
  uint32_t memory_is_host_addressable;
} gapless_device_properties;

typedef struct gapless_driver {
  uint32_t abi_version;
  const char* name;

  /* Called once, before any other call, from the thread that first uses a device. It must not start
   * a thread: the process may still fork. */
  gapless_status (*init)(void);

  int (*device_count)(void);
  gapless_status (*device_properties)(int device, gapless_device_properties* out);

  /* Device memory. Addresses are aligned to at least 64 bytes. `memory_free` is called only when no
   * queued work can touch the block any more. */
  gapless_status (*memory_alloc)(int device, uint64_t bytes, void** out);
  gapless_status (*memory_free)(int device, void* address, uint64_t bytes);
  gapless_status (*memory_info)(int device, uint64_t* free_bytes, uint64_t* total_bytes);

  /* Host memory that `copy` reaches without staging (pinned memory). */
  gapless_status (*host_alloc)(uint64_t bytes, void** out);
  gapless_status (*host_free)(void* address, uint64_t bytes);

  /* A stream's native thread calls `stream_enter` before its first work and `stream_leave` after
   * its last one; here the driver places the thread (cores, priority, size of its thread team). */
  gapless_status (*stream_enter)(int device, int stream);
  void (*stream_leave)(int device, int stream);

  /* Called on a stream's native thread, in the stream's order; returns when the copy is done. */
  gapless_status (*copy)(int device, int stream, void* destination, const void* source,
                         uint64_t bytes, gapless_copy_kind kind);

  /* The text of this thread's last failure; never NULL. */
  const char* (*last_error)(void);
} gapless_driver;

/* The one symbol that a driver exports. */
typedef const gapless_driver* (*gapless_driver_entry)(void);

#ifdef __cplusplus
}
#endif

#endif /* GAPLESS_DRIVERS_DRIVER_H_ */
