/* The driver contract: what gapless asks of the code under a device, in plain C.
 *
 * A driver is a table of functions. It is filled in before the driver hands it out and never
 * changes afterwards. Where a call does not say otherwise:
 *
 *   threading   any thread may call it, several at a time, after `init` returned;
 *   ordering    calls with the same (device, stream) come one at a time, from the stream's own
 *               thread, in the stream's order; calls for different streams are not ordered;
 *   ownership   the caller owns every buffer that it passes in, and the driver keeps no pointer to
 *               one after it returned;
 *   errors      a call returns GAPLESS_OK or a status, and on failure `last_error` tells, on the
 *               same thread and until the next failing call, what was wanted, the limit and the
 *               remedy. A driver never ends the process, prints, or throws through the table;
 *   blocking    no call takes Python's global lock, or waits for work of another stream.
 *
 * Devices and streams are numbered from 0. Times are nanoseconds of CLOCK_MONOTONIC.
 */
#ifndef GAPLESS_DRIVERS_DRIVER_H_
#define GAPLESS_DRIVERS_DRIVER_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Raised whenever the table or the meaning of a call changes; gapless refuses another number. */
#define GAPLESS_DRIVER_ABI_VERSION 3u

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

/* Who may use a device address as a pointer. It decides how operators without a program of the
 * driver's own are executed. */
typedef enum gapless_memory_access {
  /* Any host code, at any time: PyTorch's CPU kernels run on the memory in place. */
  GAPLESS_MEMORY_SHARED = 0,
  /* Only code on a stream's thread, and at the address plus `kernel_offset_bytes`: kernels run in
   * place there, and the plain address faults everywhere. */
  GAPLESS_MEMORY_OFFSET = 1,
  /* Nobody: only `copy` and `copy_peer` reach it. Operands are copied to host memory on the
   * stream's thread, computed on there, and copied back; every such operator is counted. */
  GAPLESS_MEMORY_PRIVATE = 2,
} gapless_memory_access;

typedef struct gapless_device_properties {
  char name[64];
  uint64_t total_memory_bytes;
  uint32_t cores;
  uint32_t memory_access; /* gapless_memory_access */
  int64_t kernel_offset_bytes;
  /* 0 where operators take their time but compute nothing (a simulator of speed alone), else 1. */
  uint32_t computes;
  /* Blocks of at least so many bytes come from `memory_alloc` filled with zeros, as pages from an
   * operating system do, so that a large tensor of zeros need not be written; 0: none do. */
  uint64_t zeroed_from_bytes;
} gapless_device_properties;

/* What a stream is about to execute. */
typedef struct gapless_work {
  const char* name;     /* "aten::mm.out", "graph replay"; lives as long as the process */
  int32_t kind;         /* gapless::WorkKind: 0 op, 1 replay, 2-4 copies, 5 event */
  uint32_t operators;   /* how many it consists of: 0 for events and for what `copy` accounts for */
  int64_t submitted_ns; /* when the host submitted it */
  int64_t ready_ns;     /* when what it waits for on other streams was reached, 0 for nothing */
  uint64_t bytes;       /* of the operators' operands and results */
  double flops;         /* 2 per multiplication and addition of a matrix product; 0 for others */
} gapless_work;

typedef struct gapless_work_times {
  int64_t start_ns;
  int64_t end_ns;
} gapless_work_times;

typedef struct gapless_driver {
  uint32_t abi_version; /* GAPLESS_DRIVER_ABI_VERSION of the header it was built with */
  const char* name;

  /* Called once, before any other call, from the thread that first uses a device. Looks for the
   * hardware and reads settings. It starts no thread: the process may still fork. */
  gapless_status (*init)(void);

  /* How many devices there are; constant after `init`. */
  int (*device_count)(void);
  gapless_status (*device_properties)(int device, gapless_device_properties* out);

  /* Device memory. Addresses are aligned to at least 64 bytes and differ from host memory's
   * and from the other devices' of the process. `memory_free` gets an address and its size as they
   * were allocated, and comes only when no queued work can touch the block any more.
   * Errors: GAPLESS_OUT_OF_MEMORY, upon which gapless returns cached memory and asks once more. */
  gapless_status (*memory_alloc)(int device, uint64_t bytes, void** out);
  gapless_status (*memory_free)(int device, void* address, uint64_t bytes);
  gapless_status (*memory_info)(int device, uint64_t* free_bytes, uint64_t* total_bytes);

  /* Host memory that `copy` reaches without staging (pinned memory), for all devices. */
  gapless_status (*host_alloc)(uint64_t bytes, void** out);
  gapless_status (*host_free)(void* address, uint64_t bytes);

  /* A stream's native thread calls `stream_enter` before its first work and `stream_leave` after
   * its last one; here the driver places the thread (cores, priority, size of its thread team).
   * Lower numbers of `priority` are more urgent; 0 is usual. */
  gapless_status (*stream_enter)(int device, int stream, int priority);
  void (*stream_leave)(int device, int stream);

  /* Copies between host memory (pinned or not) and the device's, or within the device's; the ranges
   * do not overlap. On the stream's thread; returns when the bytes have arrived. */
  gapless_status (*copy)(int device, int stream, void* destination, const void* source,
                         uint64_t bytes, gapless_copy_kind kind);
  /* Copies from another device's memory to this one's, on a stream of this one. NULL where two
   * copies through pinned host memory have to do. */
  gapless_status (*copy_peer)(int device, int stream, void* destination, int source_device,
                              const void* source, uint64_t bytes);

  /* Both or neither (NULL): for a device whose time is not the time that host code takes. They
   * bracket each work on the stream's thread. `work_begin` says what is about to run; `work_end`
   * returns when the device would be done with it, and tells when it ran. */
  void (*work_begin)(int device, int stream, const gapless_work* work);
  void (*work_end)(int device, int stream, gapless_work_times* out);

  /* The text of this thread's last failure; never NULL. */
  const char* (*last_error)(void);
} gapless_driver;

/* The one symbol that a driver's shared object exports: `gapless_driver_entry_point`. The table
 * lives as long as the process. */
typedef const gapless_driver* (*gapless_driver_entry)(void);
#define GAPLESS_DRIVER_ENTRY_POINT "gapless_driver_entry_point"

#ifdef __cplusplus
}
#endif

#endif /* GAPLESS_DRIVERS_DRIVER_H_ */
