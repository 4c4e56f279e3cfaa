/** Eight threads that compute, allocate, and meet null pointers, until a line comes; exits with 7 if every result was right. */
public class Busy {
    static volatile boolean stop, bad;

    static long round() {
        long h = 1;
        Object[] kept = new Object[64];
        for (int i = 0; i < 200000; i++) {
            h = h * 6364136223846793005L + i;
            kept[i & 63] = new long[] {h};
        }
        try {
            kept[0] = null;
            kept[0].hashCode();
        } catch (NullPointerException e) {
            h ^= 5;
        }
        return h;
    }

    public static void main(String[] args) throws Exception {
        long want = round();
        Thread[] all = new Thread[8];
        for (int i = 0; i < all.length; i++) {
            all[i] = new Thread(() -> {
                for (int n = 0; !stop; n++) {
                    bad |= round() != want;
                    if ((n & 15) == 0)
                        System.gc();
                }
            });
            all[i].start();
        }
        System.out.println("ready");
        System.in.read();
        stop = true;
        for (Thread thread : all)
            thread.join();
        System.exit(bad ? 1 : 7);
    }
}
