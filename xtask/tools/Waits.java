/** Waits for lines: "crash" writes to an address that is not mapped. */
public class Waits {
    static sun.misc.Unsafe unsafe() throws Exception {
        java.lang.reflect.Field field = sun.misc.Unsafe.class.getDeclaredField("theUnsafe");
        field.setAccessible(true);
        return (sun.misc.Unsafe) field.get(null);
    }

    static void inner() throws Exception {
        StringBuilder line = new StringBuilder();
        for (int letter; (letter = System.in.read()) > 0 && letter != '\n';)
            line.append((char) letter);
        if (line.toString().equals("crash"))
            unsafe().putInt(8L, 1);
    }

    static void outer() throws Exception {
        inner();
    }

    public static void main(String[] args) throws Exception {
        System.out.println("ready");
        for (;;)
            outer();
    }
}
