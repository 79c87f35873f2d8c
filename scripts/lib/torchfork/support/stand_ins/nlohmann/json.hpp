// Stands in for a header that functorch's headers include and that wheels leave out.
//
// From 2.8 on ATen/functorch/Interpreter.h can write an interpreter as JSON, in inline members that
// no batch rule calls. These declarations let the header compile. They have no definitions: a call
// does not link, and says which function is missing.
#pragma once

#include <string>

namespace nlohmann {

class json {
 public:
  json();
  template <typename T>
  explicit json(const T& value);
  static json parse(const std::string& text);
  std::string dump() const;
  template <typename T>
  T get() const;
};

} // namespace nlohmann
