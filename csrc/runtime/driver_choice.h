// Which driver this process uses: built in, or a vendor's shared object.
#pragma once

#include <string>

#include "drivers/driver.h"

namespace gapless {

// The driver that GAPLESS_DRIVER names (cpu by default), initialised. A name that is not built in
// is looked up among those announced, and a path is loaded. Throws UsageError with the remedy.
const gapless_driver& choose_driver();

// Makes a name stand for the shared object at `path`. Before the first use of a device.
void announce_driver(const std::string& name, const std::string& path);

}  // namespace gapless
