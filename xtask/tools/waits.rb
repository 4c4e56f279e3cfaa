# Waits in two methods.
def inner
  $stdin.gets
end

def outer
  inner
end

$stdout.sync = true
puts "ready"
while outer
end
