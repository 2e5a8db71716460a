/* A driver for a made-up accelerator whose memory only copies reach: the smallest one that works.
 *
 *   cc -std=c11 -O2 -shared -fPIC -Icsrc examples/driver/copy_only_driver.c -o copy_only_driver.so
 *   GAPLESS_DRIVER=$PWD/copy_only_driver.so python -c "import torch; print(torch.ones(3, device='gapless') + 1)"
 *
 * Device memory is a pair of mappings: one that faults, whose address tensors carry, and the
 * "device's" one, which `copy` alone knows. Replace both by your hardware's calls.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "drivers/driver.h"

#define TOTAL_BYTES (2ull << 30) /* of all devices together */
#ifndef DEVICES
#define DEVICES 1
#endif

struct range {
  char* shown;
  char* own;
  uint64_t bytes;
  struct range* next;
};

static pthread_mutex_t g_lock = PTHREAD_MUTEX_INITIALIZER;
static struct range* g_ranges;
static uint64_t g_used_bytes;
static _Thread_local const char* t_error = "";

static gapless_status fail(gapless_status status, const char* text) {
  t_error = text;
  return status;
}

static gapless_status init(void) { return GAPLESS_OK; }

static int device_count(void) { return DEVICES; }

static gapless_status device_properties(int device, gapless_device_properties* out) {
  if (device < 0 || device >= DEVICES) return fail(GAPLESS_INVALID_ARGUMENT, "no such device");
  memset(out, 0, sizeof(*out));
  strcpy(out->name, "copy-only example");
  out->total_memory_bytes = TOTAL_BYTES;
  out->cores = 1;
  out->memory_access = GAPLESS_MEMORY_PRIVATE;
  out->computes = 1;
  return GAPLESS_OK;
}

static gapless_status memory_alloc(int device, uint64_t bytes, void** out) {
  (void)device;
  struct range* range = malloc(sizeof(*range));
  if (!range) return fail(GAPLESS_OUT_OF_MEMORY, "the host has no memory left");
  range->bytes = bytes;
  range->shown = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  range->own = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  pthread_mutex_lock(&g_lock);
  const int fits = range->shown != MAP_FAILED && range->own != MAP_FAILED &&
                   g_used_bytes + bytes <= TOTAL_BYTES;
  if (fits) {
    g_used_bytes += bytes;
    range->next = g_ranges;
    g_ranges = range;
  }
  pthread_mutex_unlock(&g_lock);
  if (!fits) {
    if (range->shown != MAP_FAILED) munmap(range->shown, bytes);
    if (range->own != MAP_FAILED) munmap(range->own, bytes);
    free(range);
    return fail(GAPLESS_OUT_OF_MEMORY, "the device has 2 GiB");
  }
  *out = range->shown;
  return GAPLESS_OK;
}

static gapless_status memory_free(int device, void* address, uint64_t bytes) {
  (void)device;
  (void)bytes;
  pthread_mutex_lock(&g_lock);
  struct range** at = &g_ranges;
  while (*at && (*at)->shown != address) at = &(*at)->next;
  struct range* range = *at;
  if (range) {
    *at = range->next;
    g_used_bytes -= range->bytes;
  }
  pthread_mutex_unlock(&g_lock);
  if (!range) return fail(GAPLESS_INVALID_ARGUMENT, "no such allocation");
  munmap(range->shown, range->bytes);
  munmap(range->own, range->bytes);
  free(range);
  return GAPLESS_OK;
}

static gapless_status memory_info(int device, uint64_t* free_bytes, uint64_t* total_bytes) {
  (void)device;
  pthread_mutex_lock(&g_lock);
  *free_bytes = TOTAL_BYTES - g_used_bytes;
  pthread_mutex_unlock(&g_lock);
  *total_bytes = TOTAL_BYTES;
  return GAPLESS_OK;
}

static gapless_status host_alloc(uint64_t bytes, void** out) {
  *out = NULL;
  if (posix_memalign(out, 64, bytes) == 0) return GAPLESS_OK;
  return fail(GAPLESS_OUT_OF_MEMORY, "the host has no memory left");
}

static gapless_status host_free(void* address, uint64_t bytes) {
  (void)bytes;
  free(address);
  return GAPLESS_OK;
}

static gapless_status stream_enter(int device, int stream, int priority) {
  (void)device;
  (void)stream;
  (void)priority;
  return GAPLESS_OK;
}

static void stream_leave(int device, int stream) {
  (void)device;
  (void)stream;
}

/* The device's own address, or NULL where the range is not all within one allocation. */
static char* own_address(const void* address, uint64_t bytes) {
  const char* first = address;
  char* own = NULL;
  pthread_mutex_lock(&g_lock);
  for (const struct range* range = g_ranges; range; range = range->next) {
    if (first >= range->shown && first + bytes <= range->shown + range->bytes) {
      own = range->own + (first - range->shown);
      break;
    }
  }
  pthread_mutex_unlock(&g_lock);
  return own;
}

static gapless_status copy(int device, int stream, void* destination, const void* source,
                           uint64_t bytes, gapless_copy_kind kind) {
  (void)device;
  (void)stream;
  if (kind != GAPLESS_HOST_TO_DEVICE) source = own_address(source, bytes);
  if (kind != GAPLESS_DEVICE_TO_HOST) destination = own_address(destination, bytes);
  if (!source || !destination) {
    return fail(GAPLESS_INVALID_ARGUMENT, "the range is not in the device's memory");
  }
  memmove(destination, source, bytes);
  return GAPLESS_OK;
}

static const char* last_error(void) { return t_error; }

static const gapless_driver g_driver = {
    .abi_version = GAPLESS_DRIVER_ABI_VERSION,
    .name = "copy_only",
    .init = init,
    .device_count = device_count,
    .device_properties = device_properties,
    .memory_alloc = memory_alloc,
    .memory_free = memory_free,
    .memory_info = memory_info,
    .host_alloc = host_alloc,
    .host_free = host_free,
    .stream_enter = stream_enter,
    .stream_leave = stream_leave,
    .copy = copy,
    .last_error = last_error,
};

const gapless_driver* gapless_driver_entry_point(void) { return &g_driver; }
