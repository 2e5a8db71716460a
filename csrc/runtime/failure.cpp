#include "runtime/failure.h"

#include <algorithm>

#include "runtime/device.h"

namespace gapless {

std::string Failure::text() const {
  std::string text = name + " failed on gapless:" + std::to_string(device) + ", stream " +
                     std::to_string(stream) + ": " + message + "\n  submitted as work " +
                     std::to_string(work);
  if (step >= 0) text += " of step " + std::to_string(step);
  text += site.empty() ? "; GAPLESS_TRACE_SUBMIT=1 may name the Python line" : "\n  at " + site;
  if (!operands.empty()) text += "\n  operands: " + operands;
  if (!inherited_by.empty()) text += "\n  " + inherited_by + " waited for that stream";
  if (skipped > 0) {
    text += "\n  " + std::to_string(skipped) + " later work(s) on " +
            (inherited_by.empty() ? "the stream" : inherited_by) +
            " were not run, since they may depend on it";
  }
  return text;
}

std::string report_of(const std::vector<std::shared_ptr<const Failure>>& failures) {
  // Each as the stream tells it where it happened, if that one is among them.
  std::vector<const Failure*> distinct;
  for (const auto& failure : failures) {
    auto same = std::find_if(distinct.begin(), distinct.end(), [&](const Failure* known) {
      return known->reported == failure->reported;
    });
    if (same == distinct.end()) {
      distinct.push_back(failure.get());
    } else if (failure->inherited_by.empty()) {
      *same = failure.get();
    }
  }
  std::string text;
  for (const Failure* failure : distinct) {
    text += (text.empty() ? "" : "\nAlso: ") + failure->text();
  }
  return text;
}

std::vector<std::string> take_unreported() {
  std::vector<std::string> texts;
  if (!initialized() || in_bad_fork()) return texts;
  std::vector<std::shared_ptr<const Failure>> failures;
  for (int index = 0; index < device_count(); ++index) {
    for (Stream* stream : device(index).streams()) {
      auto failure = stream->untaken_failure();
      if (failure && !failure->reported->exchange(true)) failures.push_back(std::move(failure));
    }
  }
  for (const auto& failure : failures) texts.push_back(failure->text());
  return texts;
}

}  // namespace gapless
