#include "runtime/driver_choice.h"

#include <dlfcn.h>
#include <sys/stat.h>
#include <unistd.h>

#include <map>
#include <mutex>

#include "drivers/cpu/cpu_driver.h"
#include "drivers/settings.h"
#include "drivers/sim/sim_driver.h"
#include "runtime/failure.h"

namespace gapless {
namespace {

std::mutex g_mutex;

std::map<std::string, std::string>& announced() {
  static auto* const paths = new std::map<std::string, std::string>;
  return *paths;
}

[[noreturn]] void refuse(const std::string& wanted, const std::string& why) {
  throw UsageError("GAPLESS_DRIVER=" + wanted + ": " + why);
}

// A shared object runs with this process's rights: nobody else may have been able to write it.
void check_file(const std::string& wanted, const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0) refuse(wanted, "there is no file " + path);
  if (info.st_uid != geteuid() && info.st_uid != 0) {
    refuse(wanted, path + " belongs to another user; use a file of your own");
  }
  if (info.st_mode & S_IWOTH) {
    refuse(wanted, "everybody may write to " + path + "; chmod o-w it first");
  }
}

const gapless_driver& load(const std::string& wanted, const std::string& path) {
  check_file(wanted, path);
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) refuse(wanted, dlerror());
  auto entry = reinterpret_cast<gapless_driver_entry>(dlsym(library, GAPLESS_DRIVER_ENTRY_POINT));
  if (!entry) refuse(wanted, path + " does not export " GAPLESS_DRIVER_ENTRY_POINT);
  const gapless_driver* driver = entry();
  if (!driver) refuse(wanted, path + ": " GAPLESS_DRIVER_ENTRY_POINT " returned no driver");
  return *driver;
}

const gapless_driver& find(const std::string& wanted) {
  if (wanted == "cpu") return *cpu::driver();
  if (wanted == "sim") return *sim::driver();
  if (wanted.front() == '/') return load(wanted, wanted);
  std::lock_guard lock(g_mutex);
  if (auto found = announced().find(wanted); found != announced().end()) {
    return load(wanted, found->second);
  }
  std::string names = "cpu, sim";
  for (const auto& [name, path] : announced()) names += ", " + name;
  refuse(wanted, "no such driver; there are: " + names +
                     ". Another one is given as the absolute path of its shared object");
}

}  // namespace

const gapless_driver& choose_driver() {
  const gapless_driver& driver = find(settings::text("GAPLESS_DRIVER").value_or("cpu"));
  if (driver.abi_version != GAPLESS_DRIVER_ABI_VERSION) {
    throw UsageError(std::string("the driver has contract version ") +
                     std::to_string(driver.abi_version) + ", this gapless needs " +
                     std::to_string(GAPLESS_DRIVER_ABI_VERSION) +
                     "; build it with this gapless's driver.h");
  }
  if (driver.init() != GAPLESS_OK) throw UsageError(driver.last_error());
  return driver;
}

void announce_driver(const std::string& name, const std::string& path) {
  std::lock_guard lock(g_mutex);
  announced()[name] = path;
}

}  // namespace gapless
