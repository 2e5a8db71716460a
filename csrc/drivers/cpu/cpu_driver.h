// The built-in driver `cpu`: host memory, host threads.
#pragma once

#include "drivers/driver.h"

namespace gapless::cpu {

const gapless_driver* driver();

}  // namespace gapless::cpu
